DROP TABLE held_message;
DROP TABLE processed_event;
