"""What operators do with orders: find, explain, change. The command and the desk share it."""
