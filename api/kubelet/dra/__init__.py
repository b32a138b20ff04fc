"""How kubelet asks a DRA plugin to prepare and unprepare claims."""
