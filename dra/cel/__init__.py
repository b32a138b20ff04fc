"""CEL selectors over devices, as kube-scheduler evaluates them."""
