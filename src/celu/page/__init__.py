"""Shared parts of our HTML pages: a style sheet, charts, and the vendored uPlot. No build step.

`assemble`: one string that is a whole page, or a page with links to a server's files
`file`: writes a page, or another text for the user, completely or not at all

The rest is for browsers: `style.css`; `figure.js`, shared by all figures; `charts.js` and
`gantt.js`; `runs.js`, runs side by side, for report and dashboard alike.
"""
