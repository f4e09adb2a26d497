"""One module a figure: each defines ``VISUALIZER``. Recorded data lie beside the module that draws them."""
