"""What people use: switching the plugin, looking at it, the command line. Imports all floors."""
