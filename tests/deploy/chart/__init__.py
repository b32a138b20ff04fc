"""Chart: what it renders, and the options that it sets."""
