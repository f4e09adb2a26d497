"""The command ``handbook``: chapters in, a site for people and Markdown for agents out."""
