"""Files of the simulated host: what kernel, driver and packages show under /."""
