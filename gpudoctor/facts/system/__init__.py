"""What /sys, /proc and files of the live machine tell, apart from the driver and the kernel log."""
