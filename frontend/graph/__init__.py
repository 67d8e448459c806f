"""The picture of the operator graph: layout, state and SVG."""
