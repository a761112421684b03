"""The plugin test kit and the simulated world. Nothing here decides anything: it runs the product's own code."""
