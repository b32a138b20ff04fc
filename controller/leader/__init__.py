"""One leadership after the other: mirrors fill the inbox, and the engine turns it into work."""
