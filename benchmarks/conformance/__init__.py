"""The peers' own tests, run with dpjax in the place of what they test."""
