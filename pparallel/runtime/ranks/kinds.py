"""What a rank says: the first field of its messages."""

RESULT, FAILURE, TOLD, FORWARDED, PRINTED = range(5)
