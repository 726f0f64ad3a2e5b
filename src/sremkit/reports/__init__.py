"""Single-file HTML reports: figures as inline SVG, images as data, nothing fetched from anywhere."""
