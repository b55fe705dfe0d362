"""What the pages show, gathered from an output: pure functions of it, without the web. Read `document`
first."""
