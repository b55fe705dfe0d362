"""`sluice record`: what a law or a catalogue wants to know of the data, out of lineage. Read `record` first.

`runs`: what read the data; `tables`: what SQL is asked; `figures`: what that gives; `forms/`: what is wanted;
`statements`: what the provider alone knows; `against`: what changed since an earlier record."""
