"""Charts as pictures, for papers and slides, in the colors of the page.

They are drawn with matplotlib from plain data, as `png`, `svg` or `pdf`; the result is
the content of the file.
"""
