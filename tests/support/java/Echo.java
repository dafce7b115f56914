import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Random;

/**
 * Echo server IP PORT: one thread, a Selector, non-blocking channels, direct buffers; "ready" when it listens.
 * Echo client IP PORT CONNECTIONS BYTES SEED: all connections at once in one Selector, each sends its bytes and a half-close
 * and must get them back; then the same in blocking calls by a thread for each. Ends with "good".
 */
public final class Echo {
    /** What a connection of the client has still to send, and what came back. */
    private static final class Exchange {
        final byte[] data;
        final ByteBuffer out, in;

        Exchange(int size, long seed) {
            data = new byte[size];
            new Random(seed).nextBytes(data);
            out = ByteBuffer.wrap(data);
            in = ByteBuffer.allocate(size + 1);
        }

        void check() throws IOException {
            in.flip();
            byte[] back = new byte[in.remaining()];
            in.get(back);
            if (!Arrays.equals(back, data)) throw new IOException(back.length + " of " + data.length + " bytes came back, or others");
        }
    }

    private static void serve(InetSocketAddress address) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.setOption(StandardSocketOptions.SO_REUSEADDR, true);
        listener.bind(address, 512).configureBlocking(false).register(selector, SelectionKey.OP_ACCEPT);
        System.out.println("ready");
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> i = selector.selectedKeys().iterator(); i.hasNext(); ) {
                SelectionKey key = i.next();
                i.remove();
                if (key.isAcceptable()) accept(selector, listener);
                else echo(key);
            }
        }
    }

    private static void accept(Selector selector, ServerSocketChannel listener) throws IOException {
        SocketChannel c = listener.accept();
        if (c == null) return;
        c.setOption(StandardSocketOptions.TCP_NODELAY, true);
        c.configureBlocking(false).register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(65536));
    }

    private static void echo(SelectionKey key) throws IOException {
        SocketChannel c = (SocketChannel) key.channel();
        ByteBuffer waiting = (ByteBuffer) key.attachment();
        boolean ended = key.isReadable() && c.read(waiting) < 0;
        waiting.flip();
        c.write(waiting);
        waiting.compact();
        if (ended) {
            while (waiting.position() > 0) {
                waiting.flip();
                c.write(waiting);
                waiting.compact();
            }
            c.close();
            return;
        }
        key.interestOps(waiting.position() > 0 ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
    }

    private static void selected(InetSocketAddress address, int connections, int size, long seed) throws IOException {
        Selector selector = Selector.open();
        for (int n = 0; n < connections; n++) {
            SocketChannel c = SocketChannel.open();
            c.configureBlocking(false);
            boolean connected = c.connect(address);
            c.register(selector, connected ? SelectionKey.OP_READ | SelectionKey.OP_WRITE : SelectionKey.OP_CONNECT,
                       new Exchange(size, seed + n));
        }
        for (int open = connections; open > 0; ) {
            if (selector.select(20000) == 0) throw new IOException("nothing is ready for 20 s, " + open + " connections are open");
            for (Iterator<SelectionKey> i = selector.selectedKeys().iterator(); i.hasNext(); ) {
                SelectionKey key = i.next();
                i.remove();
                if (step(key)) open--;
            }
        }
    }

    private static boolean step(SelectionKey key) throws IOException {
        SocketChannel c = (SocketChannel) key.channel();
        Exchange x = (Exchange) key.attachment();
        if (key.isConnectable()) {
            c.finishConnect();
            key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
            return false;
        }
        if (key.isWritable()) {
            c.write(x.out);
            if (!x.out.hasRemaining()) {
                c.shutdownOutput();
                key.interestOps(SelectionKey.OP_READ);
            }
        }
        if (key.isReadable() && c.read(x.in) < 0) {
            x.check();
            c.close();
            return true;
        }
        return false;
    }

    private static void blocking(InetSocketAddress address, int connections, int size, long seed) throws Exception {
        Thread[] crowd = new Thread[connections];
        Exception[] failed = new Exception[1];
        for (int n = 0; n < connections; n++) {
            final Exchange x = new Exchange(size, seed + n);
            crowd[n] = new Thread(() -> {
                try (SocketChannel c = SocketChannel.open(address)) {
                    Thread sender = new Thread(() -> {
                        try {
                            while (x.out.hasRemaining()) c.write(x.out);
                            c.shutdownOutput();
                        } catch (IOException e) {
                            synchronized (failed) { failed[0] = e; }
                        }
                    });
                    sender.start();
                    while (c.read(x.in) >= 0) { }
                    sender.join();
                    x.check();
                } catch (Exception e) {
                    synchronized (failed) { failed[0] = e; }
                }
            });
            crowd[n].start();
        }
        for (Thread t : crowd) t.join();
        if (failed[0] != null) throw failed[0];
    }

    public static void main(String[] args) throws Exception {
        InetSocketAddress address = new InetSocketAddress(args[1], Integer.parseInt(args[2]));
        if (args[0].equals("server")) {
            serve(address);
            return;
        }
        int connections = Integer.parseInt(args[3]), size = Integer.parseInt(args[4]);
        long seed = Long.parseLong(args[5]);
        selected(address, connections, size, seed);
        blocking(address, connections, size, seed + connections);
        System.out.println("good");
    }
}
