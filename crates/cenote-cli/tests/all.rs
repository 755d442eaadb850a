//! The command, run as users run it: one program, because each program is linked for itself.

mod advice;
mod archives;
mod backup;
mod bad_stores;
mod command_line;
mod commands;
mod common;
mod copied;
mod copies;
mod daemon;
mod damaged_logged_heap;
mod damaged_logs;
mod damaged_pages;
mod newcomer;
mod objects;
mod out_of_use;
mod owners;
mod progress;
mod protected_data;
mod put_back;
mod stopped;
mod table;
mod told;
mod tour;
mod wear_heap;
mod windows;
