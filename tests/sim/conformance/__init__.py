"""What kube-apiserver 1.36 does, as black-box cases: the embedded server has to do the same.

The fixture `kubeconfig` decides which server is meant; `tests/cluster/apiserver` runs the same
cases on a real one. Only behaviour of the real one belongs here.
"""
