"""What operators do with orders and messages. The command ``sas`` and the desk share it."""
