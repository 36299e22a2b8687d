"""The command `report`: a page, a trace and a picture."""
