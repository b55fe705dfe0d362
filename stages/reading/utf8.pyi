def text_of_utf8(octets: bytes) -> str:
    """`octets.decode()`, UnicodeDecodeError included; what asks the text for its UTF-8 later finds it made."""
