"""Support bundle: the state of the driver in one file, without what is nobody's business."""
