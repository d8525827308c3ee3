"""Tables of people with a file: cells, columns, models, descriptions, and the command.

Nothing but `dpjax.sklearn`, `dpjax.datasets` and public paths to what stands here
(`dpjax.models`, `dpjax.loading`, `dpjax.describe`) imports this package.
"""
