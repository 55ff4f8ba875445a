"""Files and names from outside: configs, catalogs, traces."""
