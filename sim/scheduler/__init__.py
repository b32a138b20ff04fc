"""Stand-in for kube-scheduler with pods and their claims: first fit, one pod at a time.

It does not allocate devices: a claim that nobody else allocates waits, as it does in a cluster
where no ResourceSlice offers a device for it. What happens to claims that another program allocates
follows the dynamicresources plugin of Kubernetes 1.36.
"""
