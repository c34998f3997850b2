"""What people look at: live progress, the before/after table and the report page."""
