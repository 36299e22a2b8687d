"""Reports of plans: a page, a picture and traces."""
