"""Steps that a user wrote: user_step calls them, user_code lists their files."""
