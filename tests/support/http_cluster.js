// http_cluster.js server IP PORT WORKERS [rr|shared]: an http server of node's cluster; POST gives the body's sha256 back, GET
//   /N gives N bytes, /pid the worker. "ready" when all workers listen. SIGUSR2 ends one; "replaced" when another listens.
// http_cluster.js client IP PORT CONNECTIONS REQUESTS SEED: kept connections; every answer is checked. Ends with "good".
'use strict';
const cluster = require('cluster');
const crypto = require('crypto');
const http = require('http');

const [role, ip, port, count, more, seed] = process.argv.slice(2);

function bytes(n, salt) {
    const unit = crypto.createHash('sha512').update(String(salt)).digest();
    return Buffer.alloc(n, unit);
}

function sha(data) { return crypto.createHash('sha256').update(data).digest('hex'); }

function answer(request, response) {
    if (request.method === 'POST') {
        const hash = crypto.createHash('sha256');
        request.on('data', piece => hash.update(piece));
        request.on('end', () => response.end(hash.digest('hex')));
    } else if (request.url === '/pid') {
        response.end(String(process.pid));
    } else {
        const n = Number(request.url.slice(1));
        response.setHeader('Content-Length', n);
        response.end(bytes(n, n));
    }
}

function serve() {
    if (!cluster.isPrimary) return http.createServer(answer).listen({host: ip, port: Number(port), exclusive: false});
    cluster.schedulingPolicy = more === 'shared' ? cluster.SCHED_NONE : cluster.SCHED_RR;
    let listening = 0, ending = false;
    cluster.on('listening', () => {
        if (++listening === Number(count)) console.log('ready');
        else if (listening > Number(count)) console.log(`replaced ${listening - Number(count)}`);
    });
    cluster.on('exit', () => { if (!ending) cluster.fork(); });
    for (let i = 0; i < Number(count); i++) cluster.fork();
    process.on('SIGUSR2', () => Object.values(cluster.workers)[0].disconnect());
    process.on('SIGTERM', () => {
        ending = true;
        cluster.disconnect(() => { console.log('stopped'); process.exit(0); });
    });
}

function ask(agent, options, body) {
    return new Promise((resolve, reject) => {
        const request = http.request({host: ip, port: Number(port), agent, timeout: 20000, ...options}, response => {
            const pieces = [];
            response.on('data', piece => pieces.push(piece));
            response.on('end', () => resolve(Buffer.concat(pieces)));
            response.on('error', reject);
        });
        request.on('timeout', () => request.destroy(new Error('no answer in time')));
        request.on('error', reject);
        request.end(body);
    });
}

async function one(agent, index) {
    const n = (index * 7919 + Number(seed)) % 200000;
    if (index % 2) {
        const body = bytes(n, index);
        const got = (await ask(agent, {method: 'POST', path: '/'}, body)).toString();
        if (got !== sha(body)) throw new Error(`POST ${n}: ${got}`);
    } else {
        const got = await ask(agent, {path: '/' + n});
        if (!got.equals(bytes(n, n))) throw new Error(`GET ${n}: ${got.length} bytes`);
    }
}

async function load() {
    const agent = new http.Agent({keepAlive: true, maxSockets: Number(count)});
    let next = 0;
    const lane = async () => { while (next < Number(more)) await one(agent, next++); };
    await Promise.all(Array.from({length: Number(count)}, lane));
    agent.destroy();
    console.log('good');
}

if (role === 'server') serve();
else load().catch(error => { console.log(`failed: ${error.stack}`); process.exit(1); });
