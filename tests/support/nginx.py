"""The configuration of an nginx with one worker that serves FOLDER/www, for tests and benchmarks."""

_TEXT = """
daemon off;
master_process {master};
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
user root;
events {{ worker_connections 1024; use epoll; }}
http {{
    access_log off;
    {more}
    keepalive_requests 100000000;
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
    uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
    server {{ listen {ip}:{port}; root {folder}/www; }}
}}
"""


def configuration(folder, ip, port, master="off", more=""):
    """`master`: on, the worker is its child, or off. `more`: directives of the http block."""
    return _TEXT.format(folder=folder, ip=ip, port=port, master=master, more=more)
