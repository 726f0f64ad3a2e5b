"""Single-file HTML reports: figures as inline SVG, pictures as data, nothing fetched from anywhere."""
