"""What happens at run time: arguments, launches, arrays, recording."""
