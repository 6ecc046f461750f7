package lockset.interop;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.redisson.api.RLock;

/**
 * A counter in a file that nothing but the lock protects: the count, who counted last (1 is Java), and how
 * often that changed; each a big-endian long.
 */
final class Counter {
    private Counter() {}

    /** The longest wait, in ms. After each turn it rests for so many times as long as that took. */
    static long count(RLock lock, String file, int times, int rests)
            throws IOException, InterruptedException {
        long longest = 0;
        try (var channel = FileChannel.open(Path.of(file), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            for (int i = 0; i < times; i++) {
                long asked = System.nanoTime();
                lock.lock();
                longest = Math.max(longest, System.nanoTime() - asked);
                try {
                    addOne(channel);
                } finally {
                    lock.unlock();
                }
                Thread.sleep(rests * (System.nanoTime() - asked) / 1_000_000);
            }
        }
        return longest / 1_000_000;
    }

    private static void addOne(FileChannel channel) throws IOException {
        var bytes = ByteBuffer.allocate(24);
        channel.read(bytes, 0);
        long count = bytes.getLong(0), last = bytes.getLong(8), changes = bytes.getLong(16);
        // Room for another in between.
        Thread.yield();
        bytes.clear();
        bytes.putLong(count + 1).putLong(1).putLong(last == 1 ? changes : changes + 1).flip();
        channel.write(bytes, 0);
    }
}
