"""Write docs/combinations.md."""

from tests.integration.combinations.page import PAGE, page

PAGE.write_text(page(), "utf-8")
