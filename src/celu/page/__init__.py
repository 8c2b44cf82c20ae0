"""What our pages are made of: one style sheet, charts, and the vendored uPlot. No build step."""
