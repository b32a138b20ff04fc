"""Control plane: etcd, API server, controller manager, scheduler, and who may talk to them."""
