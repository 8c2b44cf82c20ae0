"""Where speed and quality are measured: `celu bench NAME --out DIR`."""
