"""Results for people: text, the HTML page, pictures, exports; torch-free."""
