"""What Croissant 1.1 wants of the provider (required: name, description, url, license, creator, datePublished)."""

from __future__ import annotations

from typing import Final

from pipeline.record.forms.form import Field, Form, Section

FORM: Final = Form(
    name="croissant",
    title="Croissant 1.1",
    asks_sources=False,
    sections=(
        Section(
            title="Dataset",
            fields=(
                Field(name="name", label="name", question="of the dataset"),
                Field(name="description", label="description", question="what it is"),
                Field(name="url", label="url", question="its page"),
                Field(name="license", label="license", question="the URL of the licence"),
                Field(name="creator", label="creator", question="the organization that made it"),
                Field(name="datePublished", label="datePublished", question="YYYY-MM-DD"),
                Field(name="version", label="version", question="as 1.0.0", is_optional=True),
                Field(name="citeAs", label="citeAs", question="how to cite it", is_optional=True),
                Field(name="biases", label="rai:dataBiases", question="known biases", is_optional=True),
                Field(
                    name="limitations", label="rai:dataLimitations", question="known limits", is_optional=True
                ),
            ),
        ),
    ),
)
