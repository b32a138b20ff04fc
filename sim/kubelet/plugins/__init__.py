"""Plugins of a node: registered, asked, forgotten, their ResourceSlices with them."""
