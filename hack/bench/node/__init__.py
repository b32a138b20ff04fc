"""Speed of the node program: kubelet's calls, played over its socket."""
