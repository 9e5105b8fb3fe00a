"""What is released: wheel, sdist, single file, Debian package, manual pages; and the workflow of a release."""
