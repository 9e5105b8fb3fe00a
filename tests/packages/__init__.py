"""What is handed out: wheel, sdist, single file, Debian package, manual pages; and the workflow of a release."""
