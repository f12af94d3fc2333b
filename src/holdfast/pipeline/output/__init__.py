"""What a run leaves behind: picture files, the history of runs, timelines.

media           pictures and videos as files, with the settings inside
history         past runs of this user, with small pictures
timeline        records stages and memory over time during a run
timeline_page   a recorded timeline as one HTML page
"""
