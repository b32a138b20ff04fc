"""Release: images, chart, lists of packages, checksums."""
