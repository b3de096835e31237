"""Charts as pictures, for papers and slides, in the colors of the page.

They are drawn with matplotlib from plain data, as `png`, `svg` or `pdf`; the result is
the content of the file.
"""

from lowtide.reporting.pictures.charts import against_picture as against_picture
from lowtide.reporting.pictures.charts import batch_picture as batch_picture
from lowtide.reporting.pictures.charts import chart_picture as chart_picture
from lowtide.reporting.pictures.charts import profile_picture as profile_picture
from lowtide.reporting.pictures.charts import save_plots as save_plots
