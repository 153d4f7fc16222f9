"""What sample stores share: records as rows, group commits, and a store on a SQL database."""
