package lockset.peers;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson, as its documentation shows it: {@code lock()}, {@code unlock()}, threads of the platform, and a
 * configuration with nothing in it but the address. Its waiters are woken by messages.
 *
 * <p>The protocol is described in benches/peers/README.md.
 */
final class Main {
    public static void main(String[] args) throws IOException, InterruptedException {
        var config = new Config();
        config.useSingleServer().setAddress("redis://" + args[0]);
        var redisson = Redisson.create(config);
        var input = new BufferedReader(new InputStreamReader(System.in));
        var version = Redisson.class.getPackage().getImplementationVersion();
        say("ready Redisson " + version + ", Java " + Runtime.version().feature());
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "hold" -> {
                    lockFor(redisson, words);
                    say("held");
                }
                case "wait" -> {
                    say("waiting");
                    RLock lock = lockFor(redisson, words);
                    say("held");
                    lock.unlock();
                }
                default -> say(new Job(words).run(redisson));
            }
        }
        // What is held stays, until its lease is over.
        Runtime.getRuntime().halt(0);
    }

    private static RLock lockFor(RedissonClient redisson, String[] words) {
        RLock lock = redisson.getLock(words[1]);
        lock.lock(Long.parseLong(words[2]), TimeUnit.MILLISECONDS);
        return lock;
    }

    private static void say(String answer) {
        System.out.println(answer);
        System.out.flush();
    }
}
